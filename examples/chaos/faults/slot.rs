//! Somebody goes back to a bookmark, and asks for what has been sent already.

use std::time::Instant;

use anyhow::Context;
use rand::Rng;
use rand::rngs::StdRng;

use super::{Ground, lived_through, pause};
use crate::injected::{Asked, Injected};

/// What `slot reset` says before the mark.
const MARKED: &str = "outbox-router-replay: ";

pub(super) async fn reset(ground: &mut Ground, mut random: StdRng) -> anyhow::Result<Injected> {
    let name = format!("chaos_{:08x}", random.random::<u32>());
    ground.router.runs(&["slot", "bookmark", &name]).await?;
    let from = Instant::now();
    let between = pause(&mut random, 500..2_500).await;
    let to = Instant::now();
    let said = ground.router.runs(&["slot", "reset", "--to", &name, "--yes"]).await?;
    let mark = said.split(MARKED).nth(1).and_then(|mark| mark.trim_end().strip_suffix('.'));
    let mark = mark.with_context(|| format!("`slot reset` names no mark: {said}"))?.to_owned();
    let back = Instant::now();
    // it holds back log
    ground.router.runs(&["slot", "drop", &name]).await?;
    let asked = Some(Asked { mark, from, to });
    Ok(Injected { asked, ..lived_through(to, back, format!("to {} ms before", between.as_millis())) })
}
