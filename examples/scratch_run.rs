use outbox_router::{config, monitor::Monitor, supervisor};
use std::sync::Arc;
use tokio_util::sync::CancellationToken;
#[tokio::main(flavor = "current_thread")]
async fn main() {
    tracing_subscriber::fmt()
        .with_writer(std::io::stderr)
        .with_env_filter(tracing_subscriber::EnvFilter::from_default_env())
        .init();
    let env = config::environment::Environment::process().unwrap();
    let loaded = config::load::load(None, &env).unwrap_or_else(|e| {
        eprintln!("{e}");
        std::process::exit(2)
    });
    let config = Arc::new(loaded.config);
    let monitor = Monitor::new(&config.name);
    let stop = CancellationToken::new();
    let s = stop.clone();
    tokio::spawn(async move {
        let mut t = tokio::signal::unix::signal(tokio::signal::unix::SignalKind::terminate()).unwrap();
        t.recv().await;
        s.cancel();
    });
    match supervisor::run(config, monitor.clone(), stop).await {
        Ok(()) => {}
        Err(e) => {
            eprintln!("error: {e}");
        }
    }
    eprintln!("{}", serde_json::to_string(&monitor.snapshot()).unwrap());
}
