//! Whether packets open connections is foreseen from those before.

/// So many new connections in a row make the next one likely.
const LIKELY: u32 = 32;
/// One of so many predicted ones is recorded all the same, as the prediction may be wrong.
const RECORDED: u32 = 16;

/// Predicts whether a packet will open a connection: the record of such a walk serves no later packet.
#[derive(Debug, Default)]
pub(crate) struct NewConnectionPredictor {
    row: u32,
    turn: u32,
    start: u32,
}

impl NewConnectionPredictor {
    /// Whether a packet without a connection will probably open one.
    pub(crate) fn likely(&mut self) -> bool {
        self.turn = (self.turn + 1) % RECORDED;
        self.row >= LIKELY && self.turn != 0
    }

    /// Whether a packet that begins its walk will probably open a connection.
    pub(crate) fn expected(&mut self) -> bool {
        self.start = (self.start + 1) % RECORDED;
        self.row >= LIKELY && self.start != 0
    }

    /// The walk opened a connection.
    pub(crate) fn opened(&mut self) {
        self.row = self.row.saturating_add(1);
    }

    /// The walk did not open one.
    pub(crate) fn none(&mut self) {
        self.row = 0;
    }
}
