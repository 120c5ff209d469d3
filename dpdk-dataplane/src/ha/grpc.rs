//! The service `isthmus.ha.v1.Connections`, with one method:
//!
//! ```proto
//! message Frame { bytes records = 1; }   // records of gateway_ha::sync::codec; a record may span frames
//! service Connections { rpc Tell(stream Frame) returns (stream Frame); }
//! ```

use futures::{Stream, StreamExt};
use gateway_ha::sync::Record;
use hyper_util::rt::TokioIo;
use ovsdb_rs::stream::{BoxStream, Remote, connect_named};
use ovsdb_rs::tls::Tls;
use std::convert::Infallible;
use std::io;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::sync::mpsc;
use tokio_stream::wrappers::ReceiverStream;
use tonic::body::Body;
use tonic::codegen::http;
use tonic::transport::server::Connected;
use tonic::transport::{Endpoint, Server};
use tonic::{Request, Response, Status, Streaming};
use tonic_prost::ProstCodec;

/// The method's path.
const PATH: &str = "/isthmus.ha.v1.Connections/Tell";
/// Bytes on their way before the sender waits.
const WINDOW: u32 = 4 << 20;
/// How often the other end is asked whether it lives, and how long its answer may take.
const PROBE: Duration = Duration::from_secs(1);
/// How long it may take to connect.
const CONNECT: Duration = Duration::from_secs(2);

/// Some records.
#[derive(Clone, PartialEq, prost::Message)]
pub(super) struct Frame {
    /// Bytes of records.
    #[prost(bytes = "vec", tag = "1")]
    pub records: Vec<u8>,
}

impl Frame {
    /// A frame of these records.
    pub(super) fn of(records: impl IntoIterator<Item = Record>) -> Frame {
        let mut frame = Frame::default();
        records.into_iter().for_each(|r| r.encode(&mut frame.records));
        frame
    }
}

/// A connection of a peer.
pub(super) struct PeerStream {
    stream: BoxStream,
    peer: PeerIdentity,
}

/// Who connected.
#[derive(Clone, Debug)]
pub(super) struct PeerIdentity {
    /// The name in its certificate; none without TLS.
    pub name: Option<String>,
    /// Its address.
    pub address: String,
}

impl PeerStream {
    pub(super) fn new(stream: BoxStream, peer: PeerIdentity) -> PeerStream {
        PeerStream { stream, peer }
    }
}

impl Connected for PeerStream {
    type ConnectInfo = PeerIdentity;

    fn connect_info(&self) -> PeerIdentity {
        self.peer.clone()
    }
}

impl AsyncRead for PeerStream {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_read(cx, buf)
    }
}

impl AsyncWrite for PeerStream {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write(cx, buf)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }
}

/// Opens a stream to a peer. Without TLS nobody vouches for its name.
pub(super) async fn call(
    peer: &str,
    remote: &Remote,
    tls: Option<Tls>,
    frames: mpsc::Receiver<Frame>,
) -> Result<Streaming<Frame>, String> {
    let (to, name) = (remote.clone(), peer.to_owned());
    let secure = matches!(remote, Remote::Tls(..));
    let connector = tower::service_fn(move |_| {
        let (to, tls, name) = (to.clone(), tls.clone(), name.clone());
        async move {
            let (stream, certified) = connect_named(&to, tls.as_ref()).await?;
            if secure && *certified != *name {
                return Err(io::Error::other(format!("its certificate is {certified:?}'s")));
            }
            Ok(TokioIo::new(stream))
        }
    });
    let endpoint = Endpoint::from_static("http://gateway")
        .connect_timeout(CONNECT)
        .initial_stream_window_size(WINDOW)
        .initial_connection_window_size(WINDOW)
        .http2_keep_alive_interval(PROBE)
        .keep_alive_timeout(PROBE)
        .keep_alive_while_idle(true);
    let channel = endpoint.connect_with_connector(connector).await.map_err(|e| causes(&e))?;
    let mut grpc = tonic::client::Grpc::new(channel);
    grpc.ready().await.map_err(|e| causes(&e))?;
    let path = http::uri::PathAndQuery::from_static(PATH);
    let request = Request::new(ReceiverStream::new(frames));
    let answer = grpc.streaming(request, path, ProstCodec::<Frame, Frame>::default()).await;
    answer.map(Response::into_inner).map_err(|s| s.message().to_owned())
}

/// An error with what caused it.
pub(super) fn causes(e: &dyn std::error::Error) -> String {
    let mut text = e.to_string();
    let mut cause = e.source();
    while let Some(c) = cause {
        let next = c.to_string();
        if !text.contains(&next) {
            text = format!("{text}: {next}");
        }
        cause = c.source();
    }
    text
}

/// Serves connections. `hear` gets each peer's frames, and returns those that go back.
pub(super) async fn serve<F, S>(
    incoming: impl Stream<Item = io::Result<PeerStream>>,
    hear: F,
) -> Result<(), tonic::transport::Error>
where
    F: Fn(PeerIdentity, Streaming<Frame>) -> S + Clone + Send + 'static,
    S: Stream<Item = Result<Frame, Status>> + Send + 'static,
{
    let service = tower::service_fn(move |request: http::Request<Body>| {
        let hear = hear.clone();
        async move {
            if request.uri().path() != PATH {
                return Ok::<_, Infallible>(Status::unimplemented("no such method").into_http());
            }
            let method = tower::service_fn(move |r: Request<Streaming<Frame>>| {
                let hear = hear.clone();
                async move {
                    let unknown = || Status::internal("the peer is not known");
                    let peer = r.extensions().get::<PeerIdentity>().cloned().ok_or_else(unknown)?;
                    Ok::<_, Status>(Response::new(hear(peer, r.into_inner()).boxed()))
                }
            });
            Ok(tonic::server::Grpc::new(ProstCodec::<Frame, Frame>::default()).streaming(method, request).await)
        }
    });
    Server::builder()
        .initial_stream_window_size(WINDOW)
        .initial_connection_window_size(WINDOW)
        .http2_keepalive_interval(Some(PROBE))
        .http2_keepalive_timeout(Some(PROBE))
        .serve_with_incoming(service, incoming)
        .await
}
