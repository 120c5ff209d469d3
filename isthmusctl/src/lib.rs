//! isthmusctl: one command for people
