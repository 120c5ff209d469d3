//! End-to-end scenarios: demo, interoperability labs, benchmarks
