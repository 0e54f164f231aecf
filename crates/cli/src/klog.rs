//! Flags of klog and glog, which every old program of Kubernetes had. Old deployments still pass them. Logs go to
//! standard error here, so the flags are accepted with a warning and have no effect.

use clap::Args;

/// Accepted flags. Flags with underscores may also be spelled with dashes, except `--log_file`, because `--log-file`
/// has another meaning here.
#[derive(Args, Clone, Debug)]
pub(crate) struct Klog {
    #[arg(id = "klog_logtostderr", long = "logtostderr", hide = true, num_args = 0..=1, require_equals = true, default_missing_value = "true")]
    logtostderr: Option<String>,
    #[arg(id = "klog_alsologtostderr", long = "alsologtostderr", hide = true, num_args = 0..=1, require_equals = true, default_missing_value = "true")]
    alsologtostderr: Option<String>,
    #[arg(id = "klog_skip_headers", long = "skip_headers", alias = "skip-headers", hide = true, num_args = 0..=1, require_equals = true, default_missing_value = "true")]
    skip_headers: Option<String>,
    #[arg(id = "klog_skip_log_headers", long = "skip_log_headers", alias = "skip-log-headers", hide = true, num_args = 0..=1, require_equals = true, default_missing_value = "true")]
    skip_log_headers: Option<String>,
    #[arg(id = "klog_add_dir_header", long = "add_dir_header", alias = "add-dir-header", hide = true, num_args = 0..=1, require_equals = true, default_missing_value = "true")]
    add_dir_header: Option<String>,
    #[arg(id = "klog_one_output", long = "one_output", alias = "one-output", hide = true, num_args = 0..=1, require_equals = true, default_missing_value = "true")]
    one_output: Option<String>,
    #[arg(id = "klog_stderrthreshold", long = "stderrthreshold", hide = true)]
    stderrthreshold: Option<String>,
    #[arg(
        id = "klog_log_backtrace_at",
        long = "log_backtrace_at",
        alias = "log-backtrace-at",
        hide = true
    )]
    log_backtrace_at: Option<String>,
    #[arg(id = "klog_log_dir", long = "log_dir", alias = "log-dir", hide = true)]
    log_dir: Option<String>,
    #[arg(id = "klog_log_file", long = "log_file", hide = true)]
    log_file: Option<String>,
    #[arg(
        id = "klog_log_file_max_size",
        long = "log_file_max_size",
        alias = "log-file-max-size",
        hide = true
    )]
    log_file_max_size: Option<String>,
}

/// The flags by name.
const NAMES: [&str; 11] = [
    "logtostderr",
    "alsologtostderr",
    "skip_headers",
    "skip_log_headers",
    "add_dir_header",
    "one_output",
    "stderrthreshold",
    "log_backtrace_at",
    "log_dir",
    "log_file",
    "log_file_max_size",
];

impl Klog {
    /// Warns about each given flag.
    pub(crate) fn warn(&self) {
        let given = [
            &self.logtostderr,
            &self.alsologtostderr,
            &self.skip_headers,
            &self.skip_log_headers,
            &self.add_dir_header,
            &self.one_output,
            &self.stderrthreshold,
            &self.log_backtrace_at,
            &self.log_dir,
            &self.log_file,
            &self.log_file_max_size,
        ];
        for (name, value) in NAMES.into_iter().zip(given) {
            // This value, which every deployment passes, matches the actual behaviour.
            if value.is_some() && (name, value.as_deref()) != ("logtostderr", Some("true")) {
                tracing::warn!("--{name} has no effect: logs go to standard error");
            }
        }
    }
}

/// Returns whether this argument is one of the flags with one dash, as Go's own flags are often written.
#[cfg(feature = "provision")]
pub(crate) fn is_flag(arg: &str) -> bool {
    let name = arg.strip_prefix('-').unwrap_or_default();
    let name = name.split('=').next().unwrap_or_default();
    NAMES.contains(&name)
}
