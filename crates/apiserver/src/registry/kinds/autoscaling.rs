//! The group `autoscaling`. A controller reads metrics and scales the targets.

use super::{BASE, Kind, V1, Version};
use crate::registry::columns::autoscaling as columns;
use crate::registry::rules::autoscaling;
use crate::registry::{Conversion, Subresource};

pub(super) static KINDS: &[Kind] = &[Kind {
    group: "autoscaling",
    versions: &[
        Version { name: "v2", ..V1 },
        Version {
            conversion: Some(Conversion {
                to_stored: autoscaling::v1::to_stored,
                from_stored: autoscaling::v1::from_stored,
            }),
            ..V1
        },
    ],
    kind: "HorizontalPodAutoscaler",
    plural: "horizontalpodautoscalers",
    singular: "horizontalpodautoscaler",
    short: &["hpa"],
    categories: &["all"],
    storage: "autoscaling/horizontalpodautoscalers",
    subresources: &[Subresource::Status],
    columns: columns::SCALER,
    default: autoscaling::default_scaler,
    prepare: autoscaling::prepare_scaler,
    validate: autoscaling::validate_scaler,
    validate_new: autoscaling::validate_new_scaler,
    validate_update: autoscaling::validate_scaler_update,
    validate_status: autoscaling::validate_scaler_status,
    ..BASE
}];
