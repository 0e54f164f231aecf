//! Errors of API servers in one readable line.

/// Describes an error in one line. kube would print the whole Status of a rejected request, and every layer of the
/// client for a failed connection.
pub fn plain(error: &kube::Error) -> String {
    tenure_lock::in_words(error)
}
