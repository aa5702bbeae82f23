//! What must never break; one file for each invariant, and its name in its tests.

mod idle_ack;
