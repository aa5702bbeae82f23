#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| outbox_router_fuzz::pgoutput::run(bytes));
