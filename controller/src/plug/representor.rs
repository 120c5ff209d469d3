//! Representors of functions of network cards (`vif-plug-type=representor`): the options of OVN's provider of that name, and more
//! ([`representors::select`]).

use super::{Device, Provider, Refusal};
use ovn_schema::{Map, Str};
use representors::select::Missing;
use representors::{Follow, Wanted, kernel, recorded};
use std::path::PathBuf;
use std::sync::{Arc, OnceLock};
use tokio::sync::Notify;

const PREFIX: &str = "vif-plug:representor:";

/// Where it is known from which cards there are.
#[derive(Clone, Debug)]
pub enum Source {
    /// The kernel.
    Kernel,
    /// A file.
    File(PathBuf),
}

/// Gives each port the network device that represents its function.
#[derive(Debug)]
pub struct Representors {
    source: Source,
    wake: Arc<Notify>,
    /// What follows the cards, since the first port asked for one.
    inventory: OnceLock<Result<Follow, String>>,
}

impl Representors {
    /// `wake` is notified when the cards change.
    pub fn new(source: Source, wake: Arc<Notify>) -> Representors {
        Representors { source, wake, inventory: OnceLock::new() }
    }

    fn follow(&self) -> Result<Follow, String> {
        let follow = match &self.source {
            Source::Kernel => {
                kernel::follow().map_err(|e| format!("this machine's network cards cannot be read: {e}"))?
            }
            Source::File(f) => recorded::follow(f.clone()),
        };
        let (mut changes, wake) = (follow.clone(), self.wake.clone());
        tokio::spawn(async move {
            while changes.changed().await.is_ok() {
                wake.notify_one();
            }
        });
        Ok(follow)
    }
}

impl Provider for Representors {
    fn device(&self, _: &str, options: &Map<Str, Str>) -> Result<Device, Refusal> {
        let get = |key: &str| options.get(&*format!("{PREFIX}{key}")).map(|v| &**v);
        let wanted = Wanted::parse(get).map_err(|e| e.to_string())?;
        let follow = self.inventory.get_or_init(|| self.follow()).as_ref().map_err(String::clone)?;
        let inventory = follow.borrow();
        match inventory.find(&wanted) {
            Ok(name) => Ok(Device { name: name.into(), kind: "".into(), options: Map::new() }),
            Err(Missing::Unread) => Err(Refusal::Unknown),
            Err(e) => Err(Refusal::Because(e.to_string())),
        }
    }

    fn maintains(&self) -> &'static [&'static str] {
        &[]
    }

    fn version(&self) -> u64 {
        self.inventory.get().and_then(|f| f.as_ref().ok()).map_or(0, |f| f.borrow().version())
    }
}
