//! The cached flows of all PMD threads, for `dpctl/dump-flows`: taken a few at a time, as packets wait meanwhile.

use super::MainPmd;
use super::handle::{Handle, Jobs, PmdEnded};
use std::collections::HashSet;
use std::sync::Arc;
use switch::{DumpPart, Path, Shown, merge_flows};

/// Cached flows whose ways are followed once more in one job, some ten microseconds each.
const SECTIONS: usize = 16;
/// Flows that become text in one job.
const TEXTS: usize = 128;

/// What counts the flows that stand for others ([`Shown::counted_by`]).
type Known = Arc<HashSet<Path>>;

/// The cached flows of a PMD thread, and its processor, which the main one has none of here.
pub type ThreadFlows = (Option<usize>, Vec<Shown>);

impl Handle {
    /// The cached flows of each PMD thread, the main one's first. In place of one that has a whole way through connection
    /// tracking are its sections, and in place of flows of single connections the flow that they are like.
    ///
    /// # Errors
    /// The main thread has ended.
    pub async fn cached_flows(&self) -> Result<Vec<ThreadFlows>, PmdEnded> {
        // The main thread makes the flows that flows of single connections are like, and has all of them.
        let (ways, processors) = self.read(|w| (w.switch.whole_ways(), w.fast.processors())).await?;
        let known: Known = Arc::new(ways.iter().map(Shown::counted_by).collect());
        let (mut own, _) = self.collect(None, &known).await?;
        own.extend(ways.iter().cloned());
        let mut threads = vec![(None, own)];
        for processor in processors {
            let (mut flows, alike) = self.collect(Some(processor), &known).await?;
            flows.extend(ways.iter().filter(|f| alike.contains(&f.counted_by())).cloned());
            threads.push((Some(processor), flows));
        }
        let mut out = Vec::new();
        for (processor, flows) in threads {
            out.push((processor, merge_flows(self.sections(flows).await?)));
        }
        Ok(out)
    }

    /// The flows of a thread but for those that `known` ones stand for, and what counts these.
    async fn collect(&self, processor: Option<usize>, known: &Known) -> Result<(Vec<Shown>, HashSet<Path>), PmdEnded> {
        let (mut flows, mut alike, mut from) = (Vec::new(), HashSet::new(), 0);
        loop {
            let part = match processor {
                None => {
                    self.read_with((from, known.clone()), |w, (from, known)| w.switch.dump_part(from, &known)).await?
                }
                Some(processor) => {
                    let ask = |w: &MainPmd, (p, from, known)| w.fast.request_flows(p, from, known);
                    let asked = self.read_with((processor, from, known.clone()), ask).await?;
                    // A thread that ends meanwhile has no more flows.
                    let part = match asked {
                        Some(answer) => answer.await.unwrap_or_default(),
                        None => DumpPart::default(),
                    };
                    let told =
                        |w: &MainPmd, all: Vec<Shown>| all.into_iter().map(|f| w.switch.with_example(f)).collect();
                    DumpPart { flows: self.read_with(part.flows, told).await?, ..part }
                }
            };
            flows.extend(part.flows);
            alike.extend(part.alike);
            match part.next {
                Some(next) => from = next,
                None => return Ok((flows, alike)),
            }
        }
    }

    /// Flows, with sections in place of whole ways.
    async fn sections(&self, flows: Vec<Shown>) -> Result<Vec<Shown>, PmdEnded> {
        let (whole, mut out): (Vec<Shown>, Vec<Shown>) = flows.into_iter().partition(Shown::is_whole_way);
        for some in chunks(whole, SECTIONS) {
            let of = move |w: &mut MainPmd| some.iter().flat_map(|f| w.switch.sections(f)).collect::<Vec<_>>();
            out.extend(self.run(of).await?);
        }
        Ok(out)
    }

    /// What `tell` says of flows, in their order.
    ///
    /// # Errors
    /// The main thread has ended.
    pub async fn tell_flows(
        &self,
        flows: Vec<Shown>,
        tell: impl Fn(&MainPmd, &Shown) -> Option<String> + Send + Sync + 'static,
    ) -> Result<Vec<String>, PmdEnded> {
        let (tell, mut out) = (Arc::new(tell), Vec::new());
        for some in chunks(flows, TEXTS) {
            let tell = tell.clone();
            let texts = move |w: &mut MainPmd| some.iter().filter_map(|f| tell(w, f)).collect::<Vec<_>>();
            out.extend(self.run(texts).await?);
        }
        Ok(out)
    }
}

/// A list in parts of at most so many.
fn chunks<T>(list: Vec<T>, most: usize) -> impl Iterator<Item = Vec<T>> {
    let mut rest = list.into_iter();
    std::iter::from_fn(move || {
        let part: Vec<T> = rest.by_ref().take(most).collect();
        (!part.is_empty()).then_some(part)
    })
}
