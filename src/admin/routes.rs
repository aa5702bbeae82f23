//! The routes. None of them requires authentication.

use axum::extract::State;
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use axum::{Json, Router};

use crate::monitor::{Monitors, Probe};

/// The version of the Prometheus text format that the exporter writes.
const METRICS_TYPE: &str = "text/plain; version=0.0.4; charset=utf-8";

const PAGES: &str = "\
/metrics  metrics for Prometheus
/healthz  200 while the main loop runs, else 503; for a liveness probe
/readyz   200 if active, done, or a standby that waits for the slot, else 503 with the reason; for a readiness probe
/status   the status report as JSON
";

pub(super) fn routes(monitors: Monitors) -> Router {
    Router::new()
        .route("/", get(|| async { index() }))
        .route("/metrics", get(metrics))
        .route("/healthz", get(async |State(monitors): State<Monitors>| probe(monitors.health())))
        .route("/readyz", get(async |State(monitors): State<Monitors>| probe(monitors.readiness())))
        .route("/status", get(async |State(monitors): State<Monitors>| Json(monitors.snapshot())))
        .fallback(async || (StatusCode::NOT_FOUND, index()))
        .with_state(monitors)
}

fn index() -> String {
    format!("outbox-router {}\n\n{PAGES}", env!("CARGO_PKG_VERSION"))
}

async fn metrics(State(monitors): State<Monitors>) -> Response {
    metrics_page(monitors.render_metrics())
}

/// The answer with metrics in Prometheus's text format.
pub(crate) fn metrics_page(text: String) -> Response {
    ([(header::CONTENT_TYPE, METRICS_TYPE)], text).into_response()
}

fn probe(probe: Probe) -> Response {
    let status = if probe.ok { StatusCode::OK } else { StatusCode::SERVICE_UNAVAILABLE };
    (status, probe.text + "\n").into_response()
}
