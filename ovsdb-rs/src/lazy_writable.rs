//! Streams that wait for room to write only when there is none. A runtime that always listens for room is
//! woken each time a peer has read something: for a thousand clients that costs as much as the writing, and a
//! client is woken once for nothing after each request.

use std::io::{self, Read, Write};
use std::os::fd::AsRawFd;
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use tokio::io::unix::AsyncFd;
use tokio::io::{AsyncRead, AsyncWrite, Interest, ReadBuf};

/// How much is received at a time, at first and at most: what is received into is filled with zeros first, and where much
/// comes there is room for more.
const FIRST: usize = 4 << 10;
const MOST: usize = 256 << 10;

/// A socket that does not block.
pub(crate) trait Socket: AsRawFd + Send + Unpin {
    /// A duplicate of the descriptor.
    fn again(&self) -> io::Result<Self>
    where
        Self: Sized;
    fn receive(&self, buffer: &mut [u8]) -> io::Result<usize>;
    fn send(&self, bytes: &[u8]) -> io::Result<usize>;
    fn end(&self) -> io::Result<()>;
}

macro_rules! socket {
    ($t:ty) => {
        impl Socket for $t {
            fn again(&self) -> io::Result<$t> {
                self.try_clone()
            }
            fn receive(&self, buffer: &mut [u8]) -> io::Result<usize> {
                let mut s = self;
                s.read(buffer)
            }
            fn send(&self, bytes: &[u8]) -> io::Result<usize> {
                let mut s = self;
                s.write(bytes)
            }
            fn end(&self) -> io::Result<()> {
                self.shutdown(std::net::Shutdown::Write)
            }
        }
    };
}
socket!(std::os::unix::net::UnixStream);
socket!(std::net::TcpStream);

#[allow(
    deprecated,
    reason = "its successor is unsafe, for types that lie about their descriptor; sockets of std do not"
)]
fn registered<T: Socket>(socket: T, interest: Interest) -> io::Result<AsyncFd<T>> {
    AsyncFd::with_interest(socket, interest)
}

/// A stream over a socket.
pub(crate) struct LazyWritable<T: Socket> {
    socket: AsyncFd<T>,
    /// Registered for writability while the socket has no room; none otherwise.
    full: Option<AsyncFd<T>>,
    /// How much is received next at most.
    room: usize,
}

impl<T: Socket> LazyWritable<T> {
    /// Wraps a socket and registers it for reading.
    pub(crate) fn new(socket: T) -> io::Result<LazyWritable<T>> {
        Ok(LazyWritable { socket: registered(socket, Interest::READABLE)?, full: None, room: FIRST })
    }
}

impl<T: Socket> AsyncRead for LazyWritable<T> {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buffer: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let this = &mut *self;
        loop {
            let mut ready = ready!(this.socket.poll_read_ready(cx))?;
            let most = buffer.remaining().min(this.room);
            let room = buffer.initialize_unfilled_to(most);
            match ready.try_io(|s| s.get_ref().receive(room)) {
                Ok(Ok(n)) => {
                    // That was all: what comes later is told of (epoll(7), "Questions and answers"), and the end stays known.
                    if n > 0 && n < most {
                        ready.clear_ready();
                    }
                    let room = if n == most { most * 2 } else { n };
                    this.room = room.clamp(FIRST, MOST);
                    buffer.advance(n);
                    return Poll::Ready(Ok(()));
                }
                Ok(Err(e)) if e.kind() == io::ErrorKind::Interrupted => {}
                Ok(Err(e)) => return Poll::Ready(Err(e)),
                Err(_would_block) => {}
            }
        }
    }
}

impl<T: Socket> AsyncWrite for LazyWritable<T> {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        loop {
            let Some(full) = &self.full else {
                match self.socket.get_ref().send(bytes) {
                    Err(e) if e.kind() == io::ErrorKind::WouldBlock => {
                        let again = self.socket.get_ref().again()?;
                        self.full = Some(registered(again, Interest::WRITABLE)?);
                    }
                    Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
                    result => return Poll::Ready(result),
                }
                continue;
            };
            let mut ready = ready!(full.poll_write_ready(cx))?;
            match ready.try_io(|s| s.get_ref().send(bytes)) {
                Ok(Err(e)) if e.kind() == io::ErrorKind::Interrupted => {}
                Ok(result) => {
                    self.full = None;
                    return Poll::Ready(result);
                }
                Err(_would_block) => {}
            }
        }
    }

    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(self.socket.get_ref().end())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tokio::io::{AsyncReadExt, AsyncWriteExt};

    #[tokio::test]
    async fn all_arrives_though_the_reader_is_slow() {
        let (ours, theirs) = std::os::unix::net::UnixStream::pair().unwrap();
        ours.set_nonblocking(true).unwrap();
        theirs.set_nonblocking(true).unwrap();
        let (mut ours, mut theirs) = (LazyWritable::new(ours).unwrap(), LazyWritable::new(theirs).unwrap());
        let wanted: Vec<u8> = (0..3_000_000u32).map(|i| i as u8).collect();
        let sent = wanted.clone();
        let writer = tokio::spawn(async move {
            ours.write_all(&sent).await.unwrap();
            ours.shutdown().await.unwrap();
            let mut answer = [0; 2];
            ours.read_exact(&mut answer).await.unwrap();
            answer
        });
        tokio::time::sleep(std::time::Duration::from_millis(50)).await;
        let mut got = Vec::new();
        theirs.read_to_end(&mut got).await.unwrap();
        assert!(got == wanted);
        theirs.write_all(b"ok").await.unwrap();
        assert_eq!(&writer.await.unwrap(), b"ok");
    }

    #[tokio::test]
    async fn an_end_behind_the_last_octets_is_seen() {
        let (ours, mut theirs) = std::os::unix::net::UnixStream::pair().unwrap();
        ours.set_nonblocking(true).unwrap();
        let mut ours = LazyWritable::new(ours).unwrap();
        for n in 0..3 {
            Write::write_all(&mut theirs, b"abc").unwrap();
            let mut got = [0; 10];
            assert_eq!(ours.read(&mut got).await.unwrap(), 3, "round {n}");
        }
        Write::write_all(&mut theirs, b"end").unwrap();
        drop(theirs);
        let mut got = Vec::new();
        ours.read_to_end(&mut got).await.unwrap();
        assert_eq!(got, b"end");
    }
}
