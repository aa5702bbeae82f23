#![doc = include_str!("../README.md")]

mod creation;
mod headers;
mod topic;

pub use creation::{Answer, NewTopic, NotCreated, Options, create_topics};
pub use topic::{Record, Topic};
