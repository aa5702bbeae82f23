//! Chance that can be repeated.

use rand::SeedableRng;
use rand::rngs::StdRng;

/// The seed in `TEST_SEED`, else a new one. It is printed, and shown if the test fails.
pub(crate) fn random() -> StdRng {
    let seed = match std::env::var("TEST_SEED") {
        Ok(seed) => seed.parse().unwrap_or_else(|_| panic!("TEST_SEED is no number: {seed}")),
        Err(_) => rand::random::<u64>(),
    };
    println!("to repeat it: TEST_SEED={seed}");
    StdRng::seed_from_u64(seed)
}
