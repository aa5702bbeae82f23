//! Quantiles and ratios of measurements, and the format of times.

use std::time::Duration;

/// A summary of the latencies of events.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Latency {
    pub(crate) events: usize,
    pub(crate) p50: Duration,
    pub(crate) p99: Duration,
    pub(crate) longest: Duration,
}

impl Latency {
    /// All zero if there are no times.
    pub(crate) fn of(mut times: Vec<Duration>) -> Self {
        times.sort_unstable();
        let at = |percent| quantile(&times, percent).unwrap_or_default();
        Latency { events: times.len(), p50: at(50), p99: at(99), longest: at(100) }
    }
}

/// The median and range of repeated measurements.
#[derive(Debug, Clone, Copy, PartialEq, serde::Serialize, serde::Deserialize)]
pub(crate) struct Spread {
    pub(crate) median: f64,
    pub(crate) least: f64,
    pub(crate) most: f64,
}

impl Spread {
    /// `None` if there are no values.
    pub(crate) fn of(values: impl IntoIterator<Item = f64>) -> Option<Self> {
        let mut values: Vec<f64> = values.into_iter().collect();
        values.sort_unstable_by(f64::total_cmp);
        // for an even number of values: the mean of the middle two
        let middle = (quantile(&values, 50)? + *values.get(values.len() / 2)?) / 2.0;
        Some(Spread { median: middle, least: *values.first()?, most: *values.last()? })
    }
}

/// The nearest-rank quantile of the sorted `values`.
fn quantile<T: Copy>(values: &[T], percent: usize) -> Option<T> {
    let rank = (values.len() * percent).div_ceil(100).max(1);
    values.get(rank - 1).copied()
}

/// `None` if `that` is not positive.
pub(crate) fn ratio(this: f64, that: f64) -> Option<f64> {
    (that > 0.0).then(|| this / that)
}

/// Formats a duration in milliseconds or seconds.
pub(crate) fn time(duration: Duration) -> String {
    let milliseconds = duration.as_secs_f64() * 1000.0;
    if milliseconds < 1000.0 {
        format!("{milliseconds:.1} ms")
    } else {
        format!("{:.2} s", milliseconds / 1000.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const fn ms(milliseconds: u64) -> Duration {
        Duration::from_millis(milliseconds)
    }

    #[test]
    fn quantiles_are_the_nearest_rank() {
        let times: Vec<Duration> = (1..=200).rev().map(ms).collect();
        let expected = Latency { events: 200, p50: ms(100), p99: ms(198), longest: ms(200) };
        assert_eq!(Latency::of(times), expected);
        assert_eq!(Latency::of(vec![ms(5)]), Latency { events: 1, p50: ms(5), p99: ms(5), longest: ms(5) });
        assert_eq!(Latency::of(Vec::new()), Latency::default());
    }

    #[test]
    fn spread_does_not_depend_on_order() {
        let spread = Spread::of([9.0, 1.0, 4.0]);
        assert_eq!(spread, Some(Spread { median: 4.0, least: 1.0, most: 9.0 }));
        // for an even number of values: the mean of the middle two
        assert_eq!(Spread::of([4.0, 1.0]).map(|spread| spread.median), Some(2.5));
        assert_eq!(Spread::of([]), None);
    }

    #[test]
    fn ratio_to_zero_is_none() {
        assert_eq!(ratio(3.0, 4.0), Some(0.75));
        assert_eq!(ratio(3.0, 0.0), None);
    }

    #[test]
    fn times_have_a_suitable_unit() {
        assert_eq!([time(Duration::from_micros(1_234)), time(ms(2_500))], ["1.2 ms", "2.50 s"]);
    }
}
