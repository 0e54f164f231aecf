//! Turns a type into a partial kind.

use serde::{Deserialize, Deserializer};

/// Implements the API resource traits for types with a field `metadata: ObjectMeta`. Each line contains the type, its
/// kind, plural, group, version and scope.
#[macro_export]
macro_rules! lean_kinds {
    ($($type:ident: $kind:literal $plural:literal $group:literal $version:literal $scope:ty;)+) => {$(
        impl ::kube::Resource for $type {
            type DynamicType = ();
            type Scope = $scope;

            fn kind(_: &()) -> ::std::borrow::Cow<'_, str> {
                $kind.into()
            }
            fn group(_: &()) -> ::std::borrow::Cow<'_, str> {
                $group.into()
            }
            fn version(_: &()) -> ::std::borrow::Cow<'_, str> {
                $version.into()
            }
            fn plural(_: &()) -> ::std::borrow::Cow<'_, str> {
                $plural.into()
            }
            fn meta(&self) -> &::k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta {
                &self.metadata
            }
            fn meta_mut(
                &mut self,
            ) -> &mut ::k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta {
                &mut self.metadata
            }
        }
    )+};
}

/// For `#[serde(deserialize_with)]`: treats `null`, which servers write for an empty list, as absent.
///
/// # Errors
/// Returns an error if the value has another type.
pub fn or_default<'de, D, T>(deserializer: D) -> Result<T, D::Error>
where
    D: Deserializer<'de>,
    T: Deserialize<'de> + Default,
{
    Ok(Option::deserialize(deserializer)?.unwrap_or_default())
}
