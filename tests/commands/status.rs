//! `status`, if no router answers.

use std::io::{BufRead, BufReader};

use serde_json::Value;

use super::check::ready;
use crate::support::place::Place;
use crate::support::process;

#[test]
fn status_without_a_router_shows_the_slot() {
    let place = ready().with("ADMIN__LISTEN", "127.0.0.1:1");
    let ran = place.run(&["status", "--json"]);
    assert_eq!(ran.code, 1, "{ran:?}");
    let report: Value = serde_json::from_str(&ran.out).unwrap();
    let slot = &report["postgres"];
    assert_eq!((slot["slot"].as_str(), slot["exists"].as_bool()), (Some(place.name.as_str()), Some(true)));
    assert!(slot["problem"].is_null() && slot["retained_bytes"].is_u64(), "{slot}");
    let text = place.run(&["status"]).out;
    assert!(text.contains(&format!("slot {}: nobody reads it", place.name)), "{text}");
}

#[test]
fn status_ends_when_nobody_reads_it() {
    let place = Place::new();
    let mut status = process::start(&mut place.command(&["status", "--watch", "1"]));
    let mut out = BufReader::new(status.stdout.take().unwrap());
    let mut line = String::new();
    assert!(out.read_line(&mut line).unwrap() > 0);
    drop(out);
    assert_eq!(status.wait().unwrap().code(), Some(1), "no router runs");
}
