//! An operator resets the slot to a bookmark, so that events are sent again.

use std::time::Instant;

use anyhow::Context;
use rand::Rng;
use rand::rngs::StdRng;

use super::{Ground, pause, survived};
use crate::injected::{Asked, Injected};

/// What `slot reset` prints before the value of the replay header.
const MARKED: &str = "outbox-router-replay: ";

pub(super) async fn reset(ground: &mut Ground, mut random: StdRng) -> anyhow::Result<Injected> {
    let name = format!("chaos_{:08x}", random.random::<u32>());
    ground.router.run_command(&["slot", "bookmark", &name]).await?;
    let from = Instant::now();
    let between = pause(&mut random, 500..2_500).await;
    let to = Instant::now();
    let said = ground.router.run_command(&["slot", "reset", "--to", &name, "--yes"]).await?;
    let mark = said.split(MARKED).nth(1).and_then(|mark| mark.trim_end().strip_suffix('.'));
    let mark =
        mark.with_context(|| format!("the output of `slot reset` has no replay header: {said}"))?.to_owned();
    let back = Instant::now();
    // it would retain WAL
    ground.router.run_command(&["slot", "drop", &name, "--yes"]).await?;
    let asked = Some(Asked { mark, from, to });
    Ok(Injected { asked, ..survived(to, back, format!("to {} ms before", between.as_millis())) })
}
