//! Figures for monitoring in the Prometheus text format, version 0.0.4
//! (<https://prometheus.io/docs/instrumenting/exposition_formats/>).
//!
//! ```
//! use daemon::Metric;
//!
//! let m = Metric::counter("isthmus_drops_total", "Packets dropped.").with(&[("reason", "no_such_port")], 3);
//! assert!(m.to_string().ends_with("isthmus_drops_total{reason=\"no_such_port\"} 3\n"));
//! ```

use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};

/// What a figure does.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Kind {
    /// It only grows.
    Counter,
    /// It goes up and down.
    Gauge,
}

/// One metric: its values, told apart by labels.
#[derive(Clone, PartialEq, Debug)]
pub struct Metric {
    name: &'static str,
    help: &'static str,
    kind: Kind,
    values: Vec<(Vec<(&'static str, String)>, f64)>,
}

impl Metric {
    /// Something that only grows; its name ends in `_total`.
    pub fn counter(name: &'static str, help: &'static str) -> Metric {
        Metric { name, help, kind: Kind::Counter, values: Vec::new() }
    }

    /// Something that goes up and down.
    pub fn gauge(name: &'static str, help: &'static str) -> Metric {
        Metric { name, help, kind: Kind::Gauge, values: Vec::new() }
    }

    /// Adds the value of these labels.
    pub fn add(&mut self, labels: &[(&'static str, &str)], value: u64) {
        // Beyond 2^53 the last digits are lost, as in every reader of the format.
        self.add_real(labels, value as f64);
    }

    /// Adds the value of these labels, a fraction.
    pub fn add_real(&mut self, labels: &[(&'static str, &str)], value: f64) {
        self.values.push((labels.iter().map(|(k, v)| (*k, v.to_string())).collect(), value));
    }

    /// The same with one value more.
    #[must_use]
    pub fn with(mut self, labels: &[(&'static str, &str)], value: u64) -> Metric {
        self.add(labels, value);
        self
    }
}

fn escaped(s: &str) -> String {
    s.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n")
}

impl fmt::Display for Metric {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let kind = match self.kind {
            Kind::Counter => "counter",
            Kind::Gauge => "gauge",
        };
        writeln!(f, "# HELP {} {}", self.name, self.help.replace('\\', "\\\\").replace('\n', "\\n"))?;
        writeln!(f, "# TYPE {} {kind}", self.name)?;
        for (labels, value) in &self.values {
            f.write_str(self.name)?;
            if !labels.is_empty() {
                let list: Vec<String> = labels.iter().map(|(k, v)| format!("{k}=\"{}\"", escaped(v))).collect();
                write!(f, "{{{}}}", list.join(","))?;
            }
            writeln!(f, " {value}")?;
        }
        Ok(())
    }
}

type Source = Arc<dyn Fn() -> Pin<Box<dyn Future<Output = Vec<Metric>> + Send>> + Send + Sync>;

/// Where a daemon's metrics come from; clones are the same.
#[derive(Clone, Default)]
pub struct Metrics(Arc<Mutex<Vec<Source>>>);

impl Metrics {
    /// Adds a source; it is asked at every look.
    pub fn register<F, Fut>(&self, source: F)
    where
        F: Fn() -> Fut + Send + Sync + 'static,
        Fut: Future<Output = Vec<Metric>> + Send + 'static,
    {
        let source: Source = Arc::new(move || Box::pin(source()));
        self.0.lock().unwrap_or_else(PoisonError::into_inner).push(source);
    }

    /// All of them as text. A metric that several sources give comes once, with the values of all.
    pub async fn show(&self) -> String {
        let sources: Vec<Source> = self.0.lock().unwrap_or_else(PoisonError::into_inner).clone();
        let mut all: Vec<Metric> = Vec::new();
        for source in sources {
            for m in source().await {
                match all.iter_mut().find(|x| x.name == m.name) {
                    Some(x) => x.values.extend(m.values),
                    None => all.push(m),
                }
            }
        }
        all.iter().filter(|m| !m.values.is_empty()).map(Metric::to_string).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn sources_are_asked_and_told_apart() {
        let m = Metrics::default();
        for n in [1, 2] {
            m.register(move || async move {
                vec![
                    Metric::gauge("isthmus_size", "A \\ size.").with(&[("of", &format!("a\"{n}\n"))], n),
                    Metric::gauge("isthmus_none", "Never there."),
                ]
            });
        }
        m.register(|| async {
            let mut up = Metric::counter("isthmus_seconds_total", "Seconds.");
            up.add_real(&[], 1.5);
            vec![up]
        });
        assert_eq!(
            m.show().await,
            "# HELP isthmus_size A \\\\ size.\n# TYPE isthmus_size gauge\n\
             isthmus_size{of=\"a\\\"1\\n\"} 1\nisthmus_size{of=\"a\\\"2\\n\"} 2\n\
             # HELP isthmus_seconds_total Seconds.\n# TYPE isthmus_seconds_total counter\nisthmus_seconds_total 1.5\n"
        );
    }
}
