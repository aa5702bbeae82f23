//! Which partitions this member has, and since which assignment.

use std::collections::HashMap;
use std::sync::Mutex;
use std::sync::PoisonError;

use rdkafka::consumer::{BaseConsumer, ConsumerContext, Rebalance};
use rdkafka::error::KafkaResult;
use rdkafka::{ClientContext, TopicPartitionList};

/// Topic and partition.
pub(super) type Partition = (String, i32);

/// The partitions, each with the number of its assignment. Its callbacks run inside of a poll.
#[derive(Default)]
pub(super) struct Assignment {
    numbers: Mutex<(u64, HashMap<Partition, u64>)>,
}

impl Assignment {
    /// The number of the assignment with which this member got the partition. `None`: another member has it.
    pub(super) fn of(&self, partition: &Partition) -> Option<u64> {
        let numbers = self.numbers.lock().unwrap_or_else(PoisonError::into_inner);
        numbers.1.get(partition).copied()
    }
}

impl ClientContext for Assignment {}

impl ConsumerContext for Assignment {
    fn pre_rebalance(&self, _: &BaseConsumer<Self>, rebalance: &Rebalance<'_>) {
        let mut numbers = self.numbers.lock().unwrap_or_else(PoisonError::into_inner);
        let (last, assigned) = &mut *numbers;
        let partitions = |list: &TopicPartitionList| -> Vec<Partition> {
            list.elements().iter().map(|element| (element.topic().to_owned(), element.partition())).collect()
        };
        match rebalance {
            Rebalance::Assign(list) => {
                *last += 1;
                assigned.extend(partitions(list).into_iter().map(|partition| (partition, *last)));
            }
            Rebalance::Revoke(list) => {
                for partition in partitions(list) {
                    assigned.remove(&partition);
                }
            }
            Rebalance::Error(_) => assigned.clear(),
        }
    }

    fn commit_callback(&self, result: KafkaResult<()>, _: &TopicPartitionList) {
        if let Err(error) = result {
            tracing::warn!(
                error = &error as &dyn std::error::Error,
                "offsets were not committed; this is tried again"
            );
        }
    }
}
