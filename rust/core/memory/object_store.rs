//! The interface of stores that several processes exchange a request cache through.

use std::path::{Path, PathBuf, is_separator};
use std::sync::OnceLock;
use std::thread;
use std::time::Duration;

use specds_index::storage::files::resolve;
use specds_index::{Error, Result};

/// A store of immutable objects and one head, which is replaced only if no other process has replaced
/// it.
///
/// Nothing is locked, and no clocks are compared. Every call may fail at any time, also after it has had its effect:
/// the store cannot be reached, or denies the call.
#[expect(clippy::missing_errors_doc, reason = "they are those of all calls")]
pub trait ObjectStore {
    /// Returns the head, unless its version is `known`.
    fn head(&self, known: Option<&str>) -> Result<FoundHead>;

    /// Replaces the head if its version is `before` (`None`: if there is none), and returns the new version. `None`
    /// if it has another version.
    fn replace_head(&self, head: &[u8], before: Option<&str>) -> Result<Option<String>>;

    /// Returns the content of an object; `None` if there is none of this name.
    fn get(&self, name: &str) -> Result<Option<Vec<u8>>>;

    /// Writes an object of a new name.
    fn put(&self, name: &str, content: &[u8]) -> Result<()>;

    /// Removes an object, if it exists.
    fn delete(&self, name: &str) -> Result<()>;

    /// Returns the names of all objects that a call which began after all of their writes must know; newer ones may
    /// be missing.
    fn list(&self) -> Result<Vec<String>>;

    /// Returns the names of all stores below this one, relative to it.
    fn stores(&self) -> Result<Vec<String>>;

    /// Returns the store of a name below this one.
    fn below(&self, name: &str) -> Result<Box<dyn ObjectStore + '_>>;

    /// Returns the usual time of a call, after whose multiples an exchange is tried again if another process was
    /// faster.
    fn latency(&self) -> Duration {
        Duration::from_millis(1)
    }

    /// Waits before an exchange is tried again.
    fn wait(&self, time: Duration) {
        thread::sleep(time);
    }
}

/// The result of [`ObjectStore::head`].
#[derive(Debug)]
pub enum FoundHead {
    Missing,
    /// It has the known version.
    Unchanged,
    /// Its content and its version.
    Changed(Vec<u8>, String),
}

/// Opens the store at a URL, which is named in errors without its credentials.
pub type Opener = fn(url: &str, name: &str) -> Result<Box<dyn ObjectStore>>;

static OPENER: OnceLock<Opener> = OnceLock::new();

/// Sets what opens the stores at URLs; the first call counts. Without it, request caches are in folders alone.
pub fn set_opener(opener: Opener) {
    let _ = OPENER.set(opener);
}

/// Returns the URL of a store that is not a folder.
pub(crate) fn as_url(path: &Path) -> Option<&str> {
    path.to_str().filter(|path| path.contains("://"))
}

/// Returns the path of a folder, or a URL without what may be credentials: it is in messages and logs.
pub fn without_credentials(path: &Path) -> PathBuf {
    let Some((scheme, rest)) = as_url(path).and_then(|url| url.split_once("://")) else {
        return path.to_owned();
    };
    let rest = rest.rsplit_once('@').map_or(rest, |(_, rest)| rest);
    format!("{scheme}://{}", rest.split(['?', '#']).next().unwrap_or_default()).into()
}

/// Returns a URL, or the path of a folder without links: one that is changed later leads to no other folder.
pub(crate) fn resolved(path: &Path) -> Result<PathBuf> {
    match of_tenants(path) {
        _ if as_url(path).is_some() => Ok(path.to_owned()),
        Some(base) => Ok(resolve(&base)?.join(TENANT)),
        None => resolve(path),
    }
}

/// The last part of a path that has a store for each tenant.
const TENANT: &str = "{tenant}";

/// Returns where the stores of single tenants are, if a path names those.
pub(crate) fn of_tenants(path: &Path) -> Option<PathBuf> {
    let base = path.to_str()?.strip_suffix(TENANT)?.strip_suffix(is_separator)?;
    Some(base.into())
}

/// Returns a folder or URL below another one.
pub(crate) fn below(path: &Path, name: &str) -> PathBuf {
    match as_url(path) {
        Some(url) => format!("{}/{name}", url.trim_end_matches('/')).into(),
        None => path.join(name),
    }
}

pub(crate) fn open_url(url: &str) -> Result<Box<dyn ObjectStore>> {
    let missing = || Error::invalid("snapshot", "is a URL: name a folder, or open it in Python");
    OPENER.get().ok_or_else(missing)?(url, &without_credentials(Path::new(url)).to_string_lossy())
}
