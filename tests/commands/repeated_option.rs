//! Commands in messages repeat `-c`, so that they are not typed against another router's configuration.

use std::process::Command;

use crate::support::kafka::Kafka;
use crate::support::outbox::Outbox;
use crate::support::place::Ran;
use crate::support::process;
use crate::support::settings::Settings;

#[tokio::test]
async fn a_printed_command_names_the_configuration_that_it_is_about() {
    let (outbox, kafka) = (Outbox::new().await, Kafka::shared());
    let settings = Settings::new(&outbox, &kafka).set("route.partition", "99");
    outbox.insert("order", "a", "{}").await;
    let (here, elsewhere) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let file = settings.write_to(&here);
    let run = async |folder: &tempfile::TempDir, arguments: Vec<String>| {
        let mut command = Command::new(settings.program());
        command.args(arguments).current_dir(folder.path()).env_clear();
        tokio::task::spawn_blocking(move || Ran::of(process::output(&mut command))).await.unwrap()
    };
    let words = |text: &str| text.split(' ').map(str::to_owned).collect::<Vec<_>>();
    let option = format!("-c {}", file.display());
    // there it finds the file by itself
    let stopped = run(&here, words(&format!("{option} run"))).await;
    assert_eq!(stopped.code, 3, "{stopped:?}");
    assert!(
        stopped.err.contains("outbox-router slot advance --to ") && !stopped.err.contains("router -c"),
        "{stopped:?}"
    );
    let stopped = run(&elsewhere, words(&format!("{option} run"))).await;
    let beginning = format!("outbox-router {option} slot advance --to ");
    let command = stopped.err.lines().map(str::trim_start).find(|line| line.starts_with(&beginning));
    let command = command.unwrap_or_else(|| panic!("{stopped:?}")).strip_suffix(" --dry-run").unwrap();
    assert!(
        !stopped.err.contains("outbox-router slot") && !stopped.err.contains("outbox-router run"),
        "{stopped:?}"
    );
    let typed = format!("{} --yes", command.strip_prefix("outbox-router ").unwrap());
    let advanced = run(&elsewhere, words(&typed)).await;
    assert_eq!(advanced.code, 0, "{advanced:?}");
    let advanced = run(&elsewhere, words(&format!("{option} run --until-caught-up"))).await;
    assert_eq!(advanced.code, 0, "{advanced:?}");
}
