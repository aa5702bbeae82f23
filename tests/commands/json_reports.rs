//! `--json` of commands that change something, and `--url` of those that connect to Postgres.

use serde_json::{Value, json};

use crate::support::kafka::Kafka;
use crate::support::outbox::Outbox;
use crate::support::place::{Place, Ran, refused, succeeded};
use crate::support::router::Router;
use crate::support::settings::Settings;

fn document(ran: Ran) -> Value {
    let ran = succeeded(ran, &[]);
    serde_json::from_str(&ran.out).unwrap_or_else(|_| panic!("{ran:?}"))
}

#[test]
fn json_reports_of_init_list_the_objects() {
    let place = Place::new();
    let first = document(place.run(&["init", "--json"]));
    assert_eq!(first["changed"], true);
    let slot = format!("slot {}", place.name);
    let object = |report: &Value| {
        let objects = report["objects"].as_array().unwrap();
        objects.iter().find(|object| object["object"] == slot).unwrap()["result"].as_str().unwrap().to_owned()
    };
    assert!(object(&first).starts_with("created"), "{first}");
    let second = document(place.run(&["init", "--json"]));
    assert_eq!((&second["changed"], object(&second).as_str()), (&json!(false), "exists already"));
}

#[tokio::test]
async fn json_reports_of_slot_commands_have_positions_and_counts() {
    let (outbox, kafka) = (Outbox::new().await, Kafka::shared());
    let settings = Settings::new(&outbox, &kafka);
    let router = Router::active(&settings).await;
    let made = document(settings.run(&["slot", "bookmark", "before", "--json"]));
    assert_eq!((&made["bookmark"], &made["slot"]), (&json!("before"), &json!(outbox.name)));
    outbox.insert_numbers("order", "a", 0..3).await;
    outbox.all_confirmed().await;
    router.stop().await;

    let reset = ["slot", "reset", "--to", "before", "--json"];
    let asks = settings.run(&reset);
    refused(&asks, 2, &["Cannot ask for confirmation with --json"]);
    assert!(asks.out.contains("\"error_code\":\"OBR-2001\""), "{asks:?}");
    let shown = document(settings.run(&[&reset[..], &["--dry-run"]].concat()));
    assert_eq!((&shown["events"], &shown["moved"]), (&json!(3), &json!(false)));
    let moved = document(settings.run(&[&reset[..], &["--yes"]].concat()));
    assert_eq!(
        (&moved["events"], &moved["moved"], &moved["to"]),
        (&json!(3), &json!(true), &made["position"])
    );
    assert!(moved["replay_header"].is_string() && moved["first"].is_string(), "{moved}");

    let end = shown["from"].as_str().unwrap();
    let skipped = document(settings.run(&["slot", "advance", "--to", end, "--json", "--yes"]));
    assert_eq!((&skipped["events"], &skipped["bookmark"]), (&json!(3), &Value::Null));
    let dropped = document(settings.run(&["slot", "drop", "before", "--json", "--yes"]));
    assert_eq!(dropped["bookmark_slot"], made["bookmark_slot"]);
}

#[tokio::test]
async fn json_reports_of_a_change_of_shards() {
    let (outbox, kafka) = (Outbox::new().await, Kafka::shared());
    if outbox.server_version().await < 150_000 {
        return;
    }
    let one = Settings::new(&outbox, &kafka);
    let router = Router::active(&one).await;
    outbox.insert_numbers("order", "a", 0..3).await;
    outbox.all_confirmed().await;
    router.stop().await;
    let two = one.set("shards.count", 2);
    succeeded(two.run(&["init"]), &[]);
    let change = ["shards", "change", "--from", "1", "--json"];
    let shown = document(two.run_async(&[&change[..], &["--dry-run"]].concat()).await);
    assert_eq!((&shown["old_slots"][0]["slot"], &shown["at"]), (&json!(outbox.name), &Value::Null));
    let changed = document(two.run_async(&change).await);
    assert_eq!((&changed["complete"], changed["new_slots"].as_array().unwrap().len()), (&json!(false), 2));
    let again = document(two.run_async(&change).await);
    assert_eq!((&again["complete"], &again["at"]), (&json!(true), &changed["at"]));
    let refused = two.run(&["shards", "change", "--from", "2", "--json"]);
    assert!(refused.code == 2 && refused.out.contains("OBR-2001"), "{refused:?}");
}

#[tokio::test]
async fn url_is_used_instead_of_the_configured_role() {
    let (outbox, kafka) = (Outbox::new().await, Kafka::shared());
    let url = outbox.url();
    let settings =
        Settings::new(&outbox, &kafka).set("postgres.url", url.replace("//postgres@", "//nobody_there@"));
    for command in [&["slot", "list"][..], &["dead-letters", "list", "--json"], &["slot", "bookmark", "b"]] {
        let refused = settings.run(command);
        assert_eq!(refused.code, 1, "{refused:?}");
        succeeded(settings.run(&[command, &["--url", &url]].concat()), &[]);
    }
    let status = settings.clone().set("admin.listen", "127.0.0.1:1").run(&["status", "--url", &url]);
    assert!(status.out.contains(&outbox.name) && !status.out.contains("cannot be read"), "{status:?}");
    let change = settings.set("shards.count", 2).run(&["shards", "change", "--from", "1", "--url", &url]);
    // it has connected
    refused(&change, 1, &["does not exist"]);
}
