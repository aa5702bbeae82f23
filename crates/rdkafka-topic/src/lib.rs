#![doc = include_str!("../README.md")]

mod headers;
mod topic;

pub use topic::{Record, Topic};
