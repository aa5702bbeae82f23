//! The running program, subject by subject.

mod columns;
mod encrypted;
mod stopping;
mod topics;
