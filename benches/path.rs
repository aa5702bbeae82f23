//! The cost of an event inside the router, without Postgres and Kafka: `cargo bench --bench path`.
//!
//! `routing` measures the path from the bytes of an Insert to a record, for several configurations.

use anyhow::Result;
use criterion::{Criterion, Throughput};

#[allow(dead_code, reason = "each program uses a part of it")]
#[path = "../examples/path/event.rs"]
mod event;

use event::Path;

const CHANGES: u64 = 10_000;

fn main() -> Result<()> {
    let mut criterion = Criterion::default().configure_from_args();
    decoder(&mut criterion)?;
    routing(&mut criterion)?;
    progress(&mut criterion);
    criterion.final_summary();
    Ok(())
}

const HEADERS: &str = "route.headers.kind = \"${event_type}\"\nroute.headers.region = \"${region}\"\n";

/// Names and configurations. The first is the baseline.
fn cases() -> Vec<(&'static str, String)> {
    let cloudevents = |mode: &str| format!("route.value = \"cloudevents-{mode}\"");
    let debezium = "preset = \"debezium\"\noutbox.columns = { aggregate_type = \"aggregate_type\", aggregate_id = \"aggregate_id\" }\n";
    let rules = "[[route.rules]]\nmatch = { aggregate_type = \"invoice\" }\ndrop = true\n\
                 [[route.rules]]\nmatch = { event_type = \"/Order(Placed|Paid)/\" }\ntopic = \"orders.${match.1 | lower}\"";
    vec![
        ("payload as it is", String::new()),
        ("debezium preset", debezium.to_owned()),
        ("debezium preset, two headers", format!("{debezium}{HEADERS}")),
        ("two headers", HEADERS.to_owned()),
        ("two rules, one with an expression", rules.to_owned()),
        ("cloudevents-binary", cloudevents("binary")),
        ("cloudevents-structured", cloudevents("structured")),
        ("envelope, two members", "route.value = \"envelope\"\nroute.envelope.kind = \"${event_type}\"\nroute.envelope.region = \"${region}\"".to_owned()),
        ("payload_json = \"string\"", "route.payload_json = \"string\"".to_owned()),
        ("payload_json = \"expand\"", "route.payload_json = \"expand\"".to_owned()),
    ]
}

fn decoder(criterion: &mut Criterion) -> Result<()> {
    let insert = event::insert();
    let path = Path::of("")?;
    let mut group = criterion.benchmark_group("decoder");
    group.throughput(Throughput::Elements(1));
    group.bench_function("an Insert of eight columns", |bencher| bencher.iter(|| event::decode(&insert)));
    group.bench_function("the event in it", |bencher| bencher.iter(|| path.event(&insert)));
    group.finish();
    Ok(())
}

fn routing(criterion: &mut Criterion) -> Result<()> {
    let insert = event::insert();
    let mut group = criterion.benchmark_group("routing");
    group.throughput(Throughput::Elements(1));
    for (name, configuration) in cases() {
        let mut path = Path::of(&configuration)?;
        let mut n = 0;
        group.bench_function(name, |bencher| {
            bencher.iter(|| {
                n += 1;
                path.record(&insert, n)
            });
        });
    }
    group.finish();
    Ok(())
}

fn progress(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("progress");
    group.throughput(Throughput::Elements(CHANGES));
    group.bench_function("changes acknowledged in batches out of order", |bencher| {
        bencher.iter(|| event::progress(CHANGES));
    });
    group.finish();
}
