//! Random choices that can be repeated.

use rand::SeedableRng;
use rand::rngs::StdRng;

/// A generator with the seed in `TEST_SEED`, or a random one. The test harness shows the seed if the test fails.
pub(crate) fn random() -> StdRng {
    let seed = match std::env::var("TEST_SEED") {
        Ok(seed) => seed.parse().unwrap_or_else(|_| panic!("TEST_SEED is not a number: {seed}")),
        Err(_) => rand::random::<u64>(),
    };
    println!("to repeat this run: TEST_SEED={seed}");
    StdRng::seed_from_u64(seed)
}
