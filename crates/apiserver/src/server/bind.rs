//! The sockets that a server listens on.

use std::io;
use std::net::{Ipv6Addr, SocketAddr};
use std::os::unix::fs::{FileTypeExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use rustix::fs::Mode;
use tokio::net::{TcpListener, UnixListener};
use tokio::sync::watch;
use tokio_rustls::TlsAcceptor;

use super::builder::{Builder, StartError};
use super::listener::Listener;
use super::reload::Certificates;
use crate::pki::{Identity, Pki};
use crate::tls;

/// Bytes of one connection that the kernel keeps until the client reads them. Without a limit, the kernel keeps up to
/// 4 MiB for each client that does not read. Linux doubles the value for its own overhead.
const SEND_BUFFER: usize = 128 * 1024;

/// The bound sockets of a server.
pub(super) struct Bound {
    pub(super) tls: Option<Tls>,
    plain: Option<TcpListener>,
    socket: Option<(UnixListener, PathBuf)>,
}

/// The TLS listener with its certificates.
pub(super) struct Tls {
    listener: TcpListener,
    address: SocketAddr,
    acceptor: watch::Sender<TlsAcceptor>,
    pub(super) pki: Pki,
    /// Folder and names of the certificates, if they are in files.
    files: Option<(PathBuf, Vec<String>)>,
}

impl Bound {
    /// Opens every requested socket. Creates certificates only for TLS.
    pub(super) async fn new(
        builder: &Builder,
        folder: Option<&Path>,
        authority: Option<Identity>,
    ) -> Result<Self, StartError> {
        Ok(Self {
            tls: bind_tls(builder, folder, authority).await?,
            plain: bind_plain(builder).await?,
            socket: bind_socket(builder)?,
        })
    }

    /// Returns the URL for clients on this machine.
    pub(super) fn url(&self) -> Option<String> {
        let tls = self.tls.as_ref();
        let tls = tls.map(|tls| format!("https://{}", reachable(tls.address)));
        let socket = self.socket_path();
        tls.or_else(|| self.insecure_url())
            .or_else(|| Some(format!("unix://{}", socket?.display())))
    }

    pub(super) fn insecure_url(&self) -> Option<String> {
        let address = self.plain.as_ref()?.local_addr().ok()?;
        Some(format!("http://{address}"))
    }

    pub(super) fn socket_path(&self) -> Option<PathBuf> {
        self.socket.as_ref().map(|(_, path)| path.clone())
    }

    /// Returns the certificates, if they are in files.
    pub(super) fn certificates(&self) -> Option<Certificates> {
        let tls = self.tls.as_ref()?;
        let (folder, names) = tls.files.clone()?;
        Some(Certificates {
            folder,
            names,
            pki: tls.pki.clone(),
            acceptor: tls.acceptor.clone(),
        })
    }

    pub(super) fn into_listeners(self) -> impl Iterator<Item = Listener> {
        let tls = self
            .tls
            .map(|t| Listener::Tls(t.listener, t.acceptor.subscribe()));
        let socket = self
            .socket
            .map(|(listener, path)| Listener::Socket(listener, path));
        let plain = self.plain.map(Listener::Plain);
        tls.into_iter().chain(plain).chain(socket)
    }
}

async fn bind_tls(
    builder: &Builder,
    folder: Option<&Path>,
    authority: Option<Identity>,
) -> Result<Option<Tls>, StartError> {
    let Some(address) = builder.listen else {
        return Ok(None);
    };
    let listener = bind(address).await?;
    let address = local(&listener, address)?;
    let mut names = builder.names.clone();
    if !address.ip().is_unspecified() {
        names.push(address.ip().to_string());
    }
    let pki = match (folder, authority) {
        // A shared authority is already in the directory.
        (Some(folder), _) => Pki::load_or_generate(&folder.join("pki"), &names)?,
        (None, Some(authority)) => Pki::under(authority, &names)?,
        (None, None) => Pki::ephemeral(&names)?,
    };
    let acceptor = TlsAcceptor::from(Arc::new(tls::server_config(&pki)?));
    let (acceptor, _) = watch::channel(acceptor);
    let files = folder.map(|folder| (folder.join("pki"), names));
    Ok(Some(Tls {
        listener,
        address,
        acceptor,
        pki,
        files,
    }))
}

async fn bind_plain(builder: &Builder) -> Result<Option<TcpListener>, StartError> {
    match builder.insecure {
        None => Ok(None),
        Some(address) if !address.ip().is_loopback() => Err(StartError::NotLoopback(address)),
        Some(address) => Ok(Some(bind(address).await?)),
    }
}

fn bind_socket(builder: &Builder) -> Result<Option<(UnixListener, PathBuf)>, StartError> {
    let Some(path) = &builder.socket else {
        return Ok(None);
    };
    let failed = |source| StartError::Listen {
        address: path.display().to_string(),
        source,
    };
    remove_stale(path).map_err(failed)?;
    let listener = private_socket(path).map_err(failed)?;
    Ok(Some((listener, path.clone())))
}

/// Removes the socket file of a killed server. Keeps the socket of a running server, and files that are not sockets.
fn remove_stale(path: &Path) -> io::Result<()> {
    match std::fs::symlink_metadata(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        Err(error) => return Err(error),
        Ok(found) if !found.file_type().is_socket() => {
            let why = "the file exists and is not a socket";
            return Err(io::Error::new(io::ErrorKind::AlreadyExists, why));
        }
        Ok(_) => {}
    }
    match std::os::unix::net::UnixStream::connect(path) {
        Ok(_) => Err(io::ErrorKind::AddrInUse.into()),
        Err(error) if error.kind() == io::ErrorKind::ConnectionRefused => {
            std::fs::remove_file(path)
        }
        Err(error) => Err(error),
    }
}

/// Binds a socket file with mode 0600 from its creation, by setting the mode of the socket before it is bound.
fn private_socket(path: &Path) -> io::Result<UnixListener> {
    use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType, bind, listen};
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let kind = SocketType::STREAM;
    let socket = rustix::net::socket_with(AddressFamily::UNIX, kind, flags, None)?;
    rustix::fs::fchmod(&socket, Mode::RUSR | Mode::WUSR)?;
    bind(&socket, &SocketAddrUnix::new(path)?)?;
    // Some systems ignore the mode of the socket and use the mode of the file.
    std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o600))?;
    listen(&socket, 1024)?;
    UnixListener::from_std(socket.into())
}

/// Replaces an unspecified address with loopback.
fn reachable(address: SocketAddr) -> SocketAddr {
    match address.ip() {
        ip if ip.is_unspecified() && ip.is_ipv4() => ([127, 0, 0, 1], address.port()).into(),
        ip if ip.is_unspecified() => (Ipv6Addr::LOCALHOST, address.port()).into(),
        _ => address,
    }
}

async fn bind(address: SocketAddr) -> Result<TcpListener, StartError> {
    let failed = |source| StartError::Listen {
        address: address.to_string(),
        source,
    };
    let listener = TcpListener::bind(address).await.map_err(failed)?;
    // Accepted connections inherit the size.
    rustix::net::sockopt::set_socket_send_buffer_size(&listener, SEND_BUFFER)
        .map_err(|error| failed(error.into()))?;
    Ok(listener)
}

fn local(listener: &TcpListener, asked: SocketAddr) -> Result<SocketAddr, StartError> {
    listener.local_addr().map_err(|source| StartError::Listen {
        address: asked.to_string(),
        source,
    })
}
