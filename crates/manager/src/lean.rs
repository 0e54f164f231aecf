//! Kinds of few fields, for controllers that keep many objects: reading a field costs memory for each object, and
//! code for each kind.

use serde::{Deserialize, Deserializer};

/// Makes a type with a field `metadata: ObjectMeta` a kind of the API: its name, plural, group, version and scope.
#[macro_export]
macro_rules! lean_kind {
    ($type:ty, $kind:literal, $plural:literal, $group:literal, $version:literal, $scope:ty) => {
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
    };
}

/// For `#[serde(deserialize_with)]`: `null`, which servers write for an empty list, is the same as nothing.
///
/// # Errors
/// If it is there and not what was expected.
pub fn or_default<'de, D, T>(deserializer: D) -> Result<T, D::Error>
where
    D: Deserializer<'de>,
    T: Deserialize<'de> + Default,
{
    Ok(Option::deserialize(deserializer)?.unwrap_or_default())
}
