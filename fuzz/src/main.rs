//! Runs decoders on mutated input: `fuzz [--seconds N] [--seed N] [TARGET…]`. A panic, an input that takes longer
//! than two seconds, or a value that is another one after having been written and read again ends the run, and the
//! input is kept in `fuzz/crashes/`. What made a decoder panic once stays in `fuzz/regressions/TARGET-*`, which
//! every run tries first.
//!
//! Coverage does not guide it (cargo-fuzz needs a nightly compiler): inputs that a decoder accepts, or refuses with
//! an error that was not seen before, become seeds instead.

mod mutate;
mod pipeline;
mod seeds;
mod targets;

use anyhow::{Context, bail};
use mutate::Mutator;
use std::collections::HashSet;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};
use targets::{TARGETS, Target};

/// An input that takes longer than this, computing, is a find too.
const SLOW: Duration = Duration::from_secs(2);
/// How many seeds are kept.
const MOST_SEEDS: usize = 4000;
/// How long an input may become.
const LONGEST: usize = 64 << 10;

fn folder(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join(name)
}

fn main() -> anyhow::Result<()> {
    let (mut seconds, mut seed, mut names) = (60, rand::random::<u64>(), Vec::new());
    let mut args = std::env::args().skip(1);
    while let Some(a) = args.next() {
        let mut number = || args.next().and_then(|n| n.parse().ok()).context("expected a number");
        match a.as_str() {
            "--seconds" => seconds = number()?,
            "--seed" => seed = number()?,
            _ => names.push(a),
        }
    }
    if let Some(n) = names.iter().find(|n| !TARGETS.iter().any(|t| t.name == **n)) {
        let known: Vec<&str> = TARGETS.iter().map(|t| t.name).collect();
        bail!("{n}: no such target; there are {}", known.join(", "));
    }
    // A panic is reported with its input; its backtrace comes when the input is tried alone.
    for t in TARGETS.iter().filter(|t| names.is_empty() || names.iter().any(|n| n == t.name)) {
        // Decoders run in worker threads, whose stacks are smaller than that of the first thread.
        let thread = std::thread::Builder::new().stack_size(2 << 20);
        let running = thread.spawn(move || run(t, Duration::from_secs(seconds), seed))?;
        running.join().map_err(|_| anyhow::anyhow!("{}: the harness failed", t.name))??;
    }
    Ok(())
}

/// How long this thread has computed: others on the machine do not make an input slow.
fn computed() -> anyhow::Result<Duration> {
    Ok(nix::time::ClockId::CLOCK_THREAD_CPUTIME_ID.now()?.into())
}

/// Tries one input; gives a word for what came of it, by which inputs are told apart.
fn attempt(t: &Target, input: &[u8]) -> anyhow::Result<u64> {
    let started = computed()?;
    let result = catch_unwind(AssertUnwindSafe(|| (t.run)(input)));
    let took = computed()?.saturating_sub(started);
    let why = match result {
        Ok(Ok(outcome)) if took < SLOW => {
            let mut h = DefaultHasher::new();
            // Names and numbers in errors do not make them new.
            let word: String = outcome.chars().filter(|c| c.is_ascii_alphabetic() || *c == ' ').take(60).collect();
            (word, input.len().ilog2_or_zero()).hash(&mut h);
            return Ok(h.finish());
        }
        Ok(Ok(_)) => format!("takes {took:?}"),
        Ok(Err(difference)) => difference,
        Err(_) => "panics".to_string(),
    };
    let mut h = DefaultHasher::new();
    input.hash(&mut h);
    let path = folder("crashes").join(format!("{}-{:016x}", t.name, h.finish()));
    std::fs::create_dir_all(folder("crashes"))?;
    std::fs::write(&path, input)?;
    bail!("{}: {why}; the input is in {}", t.name, path.display())
}

trait Log {
    fn ilog2_or_zero(self) -> u32;
}

impl Log for usize {
    fn ilog2_or_zero(self) -> u32 {
        self.checked_ilog2().unwrap_or(0)
    }
}

fn run(t: &Target, limit: Duration, seed: u64) -> anyhow::Result<()> {
    let mut corpus: Vec<Vec<u8>> = (t.seeds)();
    for f in std::fs::read_dir(folder("regressions")).into_iter().flatten().flatten() {
        if f.file_name().to_string_lossy().starts_with(&format!("{}-", t.name)) {
            corpus.push(std::fs::read(f.path())?);
        }
    }
    let mut seen = HashSet::new();
    for input in &corpus {
        seen.insert(attempt(t, input)?);
    }
    let given = corpus.len();
    let mut mutator = Mutator::new(seed);
    let (started, mut tried) = (Instant::now(), 0u64);
    while started.elapsed() < limit {
        for _ in 0..64 {
            let mut input = mutator.mutate(&corpus);
            input.truncate(LONGEST);
            tried += 1;
            if seen.insert(attempt(t, &input).with_context(|| format!("--seed {seed}"))?) && corpus.len() < MOST_SEEDS {
                corpus.push(input);
            }
        }
    }
    let found = corpus.len() - given;
    println!("{}: {tried} inputs from {given} seeds, {found} kinds of outcomes more; no find", t.name);
    Ok(())
}
