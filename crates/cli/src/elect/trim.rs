//! Giving memory back once the sidecar is under way.
//!
//! Starting touches most of the program: parsing flags, TLS set-up, the first requests. A sidecar then
//! does the same few things for weeks. The kernel counts every page of code that was ever touched as
//! resident, so the code is handed back once; what is still needed comes back from the page cache.

use std::ffi::c_void;
use std::ptr::{NonNull, with_exposed_provenance_mut};
use std::time::Duration;

use nix::sys::mman::{MmapAdvise, madvise};

/// When the first term, or the first sight of a leader, is long over.
const SETTLED: [Duration; 2] = [Duration::from_secs(2), Duration::from_secs(30)];

/// Trims this process a few times while it settles.
pub(super) async fn when_settled() {
    for pause in SETTLED {
        tokio::time::sleep(pause).await;
        trim();
    }
}

/// Hands the pages of this program's code back.
fn trim() {
    let maps = std::fs::read_to_string("/proc/self/maps").unwrap_or_default();
    let own = std::fs::read_link("/proc/self/exe").unwrap_or_default();
    let code = maps.lines().filter_map(|line| {
        let mut fields = line.split_whitespace();
        let (range, permissions) = (fields.next()?, fields.next()?);
        let path = fields.nth(3)?;
        // Code only: never written, so a page that comes back from the file is the same page.
        (permissions == "r-xp" && own.as_os_str() == path).then(|| range.split_once('-'))?
    });
    for (start, end) in code {
        let address = |text| usize::from_str_radix(text, 16);
        if let (Ok(start), Ok(end)) = (address(start), address(end)) {
            drop_pages(start, end.saturating_sub(start));
        }
    }
}

#[allow(
    unsafe_code,
    reason = "there is no safe way to give pages of a mapping back"
)]
fn drop_pages(start: usize, length: usize) {
    let Some(start) = NonNull::new(with_exposed_provenance_mut::<c_void>(start)) else {
        return;
    };
    // SAFETY: a private mapping of a file that was mapped without the permission to write has no page
    // that differs from the file. The kernel drops its pages and reads them again when they are
    // touched; to the program nothing changes.
    let given_back = unsafe { madvise(start, length, MmapAdvise::MADV_DONTNEED) };
    if let Err(error) = given_back {
        tracing::debug!(%error, "cannot give memory back");
    }
}
