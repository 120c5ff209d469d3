//! Changes inputs at random: bits, bytes, numbers, ranges, words, pieces of other inputs.

use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};

/// A source of inputs.
pub struct Mutator {
    rng: StdRng,
}

const WORDS: [&str; 40] = [
    "{",
    "}",
    "[",
    "]",
    "\"",
    ",",
    ":",
    "null",
    "true",
    "-1",
    "0",
    "1e999",
    "18446744073709551616",
    "\\u0000",
    "(",
    ")",
    "\"set\"",
    "\"map\"",
    "\"uuid\"",
    "\"named-uuid\"",
    "_uuid",
    "OVSDB JSON ",
    "\n",
    "&&",
    "||",
    "!",
    "==",
    "{1..3}",
    "$",
    "@",
    "ip4.src",
    "reg0[0..31]",
    "ct(",
    "resubmit(,",
    "learn(",
    "set_field:",
    "->",
    "actions=",
    "0x",
    "/",
];

impl Mutator {
    /// The same seed gives the same inputs.
    pub fn new(seed: u64) -> Mutator {
        Mutator { rng: StdRng::seed_from_u64(seed) }
    }

    fn below(&mut self, n: usize) -> usize {
        if n == 0 { 0 } else { self.rng.random_range(0..n) }
    }

    /// An input made of one or two of the corpus.
    pub fn mutate(&mut self, corpus: &[Vec<u8>]) -> Vec<u8> {
        let place = self.below(corpus.len());
        let mut input = corpus.get(place).cloned().unwrap_or_default();
        for _ in 0..=self.below(6) {
            self.step(&mut input, corpus);
        }
        input
    }

    fn range(&mut self, n: usize) -> std::ops::Range<usize> {
        let from = self.below(n);
        from..from + self.below((n - from).min(64) + 1)
    }

    fn step(&mut self, input: &mut Vec<u8>, corpus: &[Vec<u8>]) {
        let at = self.below(input.len() + 1);
        match self.below(10) {
            0 if at < input.len() => input[at] ^= 1 << self.below(8),
            1 if at < input.len() => input[at] = self.rng.random(),
            2 => {
                let range = self.range(input.len());
                input.drain(range);
            }
            3 => {
                let range = self.range(input.len());
                let piece = input[range].to_vec();
                input.splice(at..at, piece);
            }
            4 => {
                let word = WORDS[self.below(WORDS.len())];
                input.splice(at..at, word.bytes());
            }
            5 => {
                // Another input's piece.
                let other = &corpus[self.below(corpus.len())];
                let from = self.below(other.len());
                let piece = other[from..from + self.below(other.len() - from + 1)].to_vec();
                input.splice(at..at, piece);
            }
            6 => self.number(input),
            7 if at + 2 <= input.len() => {
                let special: [u16; 6] = [0, 1, 0x7fff, 0x8000, 0xffff, 4];
                input[at..at + 2].copy_from_slice(&special[self.below(6)].to_be_bytes());
            }
            8 => input.truncate(at),
            _ => {
                // The same many times over.
                let range = self.range(input.len());
                let piece = input[range].repeat(self.below(40));
                input.splice(at..at, piece);
            }
        }
    }

    /// Another number in the place of one.
    fn number(&mut self, input: &mut Vec<u8>) {
        let digits: Vec<usize> = (0..input.len()).filter(|i| input[*i].is_ascii_digit()).collect();
        let Some(from) = digits.get(self.below(digits.len())).copied() else { return };
        let to = (from..input.len()).find(|i| !input[*i].is_ascii_digit()).unwrap_or(input.len());
        let other: [&str; 8] = ["0", "1", "-1", "255", "65536", "4294967296", "9223372036854775808", "1.5"];
        input.splice(from..to, other[self.below(8)].bytes());
    }
}
