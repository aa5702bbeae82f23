//! Everything that can end does end, at any time.

mod sigkill;
