//! Files of captured frames (pcap-savefile(5)).

use std::fs::File;
use std::io::{Result, Write};
use std::os::unix::fs::MetadataExt;
use std::time::{SystemTime, UNIX_EPOCH};

/// The magic number of files with microseconds, in this machine's byte order.
const MAGIC: u32 = 0xa1b2_c3d4;
const VERSION: [u16; 2] = [2, 4];
/// The longest frame that a reader has to expect.
const LONGEST: u32 = 1518;
const ETHERNET: u32 = 1;

/// A file to which frames are appended, each in one write: readers see whole frames at any time.
#[derive(Debug)]
pub(super) struct Pcap(File);

impl Pcap {
    /// Opens a file to append to, or makes it.
    ///
    /// # Errors
    /// The file cannot be opened or written.
    pub(super) fn append(path: &str) -> Result<Pcap> {
        let mut file = File::options().create(true).append(true).open(path)?;
        if file.metadata()?.len() == 0 {
            let mut header = MAGIC.to_ne_bytes().to_vec();
            header.extend(VERSION.iter().flat_map(|v| v.to_ne_bytes()));
            header.extend([0, 0, LONGEST, ETHERNET].iter().flat_map(|v: &u32| v.to_ne_bytes()));
            file.write_all(&header)?;
        }
        Ok(Pcap(file))
    }

    /// Whether it is the file that a path leads to now.
    pub(super) fn is(&self, path: &str) -> bool {
        let place = |m: &std::fs::Metadata| (m.dev(), m.ino());
        matches!((self.0.metadata(), std::fs::metadata(path)), (Ok(a), Ok(b)) if place(&a) == place(&b))
    }

    /// Appends a frame.
    ///
    /// # Errors
    /// The file cannot be written.
    pub(super) fn write(&self, frame: &[u8]) -> Result<()> {
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let length = frame.len() as u32;
        let mut record = Vec::with_capacity(16 + frame.len());
        record.extend([now.as_secs() as u32, now.subsec_micros(), length, length].iter().flat_map(|v| v.to_ne_bytes()));
        record.extend_from_slice(frame);
        (&self.0).write_all(&record)
    }
}
