// Package kinds lists the kinds of the API server.
package kinds

import (
	"reflect"

	admissionregistration "k8s.io/api/admissionregistration/v1"
	apps "k8s.io/api/apps/v1"
	authentication "k8s.io/api/authentication/v1"
	authorization "k8s.io/api/authorization/v1"
	autoscaling "k8s.io/api/autoscaling/v1"
	autoscalingv2 "k8s.io/api/autoscaling/v2"
	batch "k8s.io/api/batch/v1"
	certificates "k8s.io/api/certificates/v1"
	coordination "k8s.io/api/coordination/v1"
	coordinationv1alpha2 "k8s.io/api/coordination/v1alpha2"
	coordinationv1beta1 "k8s.io/api/coordination/v1beta1"
	core "k8s.io/api/core/v1"
	discovery "k8s.io/api/discovery/v1"
	events "k8s.io/api/events/v1"
	flowcontrol "k8s.io/api/flowcontrol/v1"
	networking "k8s.io/api/networking/v1"
	node "k8s.io/api/node/v1"
	policy "k8s.io/api/policy/v1"
	rbac "k8s.io/api/rbac/v1"
	resource "k8s.io/api/resource/v1"
	scheduling "k8s.io/api/scheduling/v1"
	storage "k8s.io/api/storage/v1"
	storagev1beta1 "k8s.io/api/storage/v1beta1"
	apiextensions "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	meta "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// Entry is one kind.
type Entry struct {
	Group, Version string
	object         any
}

// Type returns the Go struct of the kind.
func (e Entry) Type() reflect.Type { return reflect.TypeOf(e.object) }

// Kind returns the name of the kind.
func (e Entry) Kind() string { return e.Type().Name() }

// All contains the roots of the table. A new kind of the server is one line here.
var All = []Entry{
	{"", "v1", core.Binding{}},
	{"", "v1", core.ComponentStatus{}},
	{"", "v1", core.ConfigMap{}},
	{"", "v1", core.Endpoints{}},
	{"", "v1", core.Event{}},
	{"", "v1", core.LimitRange{}},
	{"", "v1", core.Namespace{}},
	{"", "v1", core.Node{}},
	{"", "v1", core.PersistentVolume{}},
	{"", "v1", core.PersistentVolumeClaim{}},
	{"", "v1", core.Pod{}},
	{"", "v1", core.PodTemplate{}},
	{"", "v1", core.ReplicationController{}},
	{"", "v1", core.ResourceQuota{}},
	{"", "v1", core.Secret{}},
	{"", "v1", core.Service{}},
	{"", "v1", core.ServiceAccount{}},
	{"admissionregistration.k8s.io", "v1", admissionregistration.MutatingWebhookConfiguration{}},
	{"admissionregistration.k8s.io", "v1", admissionregistration.ValidatingWebhookConfiguration{}},
	{"apiextensions.k8s.io", "v1", apiextensions.CustomResourceDefinition{}},
	{"apps", "v1", apps.ControllerRevision{}},
	{"apps", "v1", apps.DaemonSet{}},
	{"apps", "v1", apps.Deployment{}},
	{"apps", "v1", apps.ReplicaSet{}},
	{"apps", "v1", apps.StatefulSet{}},
	{"authentication.k8s.io", "v1", authentication.SelfSubjectReview{}},
	{"authentication.k8s.io", "v1", authentication.TokenRequest{}},
	{"authentication.k8s.io", "v1", authentication.TokenReview{}},
	{"authorization.k8s.io", "v1", authorization.LocalSubjectAccessReview{}},
	{"authorization.k8s.io", "v1", authorization.SelfSubjectAccessReview{}},
	{"authorization.k8s.io", "v1", authorization.SelfSubjectRulesReview{}},
	{"authorization.k8s.io", "v1", authorization.SubjectAccessReview{}},
	{"autoscaling", "v1", autoscaling.HorizontalPodAutoscaler{}},
	{"autoscaling", "v1", autoscaling.Scale{}},
	{"autoscaling", "v2", autoscalingv2.HorizontalPodAutoscaler{}},
	{"batch", "v1", batch.CronJob{}},
	{"batch", "v1", batch.Job{}},
	{"certificates.k8s.io", "v1", certificates.CertificateSigningRequest{}},
	{"coordination.k8s.io", "v1", coordination.Lease{}},
	{"coordination.k8s.io", "v1alpha2", coordinationv1alpha2.LeaseCandidate{}},
	{"coordination.k8s.io", "v1beta1", coordinationv1beta1.LeaseCandidate{}},
	{"discovery.k8s.io", "v1", discovery.EndpointSlice{}},
	{"events.k8s.io", "v1", events.Event{}},
	{"flowcontrol.apiserver.k8s.io", "v1", flowcontrol.FlowSchema{}},
	{"flowcontrol.apiserver.k8s.io", "v1", flowcontrol.PriorityLevelConfiguration{}},
	{"networking.k8s.io", "v1", networking.IPAddress{}},
	{"networking.k8s.io", "v1", networking.Ingress{}},
	{"networking.k8s.io", "v1", networking.IngressClass{}},
	{"networking.k8s.io", "v1", networking.NetworkPolicy{}},
	{"networking.k8s.io", "v1", networking.ServiceCIDR{}},
	{"node.k8s.io", "v1", node.RuntimeClass{}},
	{"policy", "v1", policy.Eviction{}},
	{"policy", "v1", policy.PodDisruptionBudget{}},
	{"rbac.authorization.k8s.io", "v1", rbac.ClusterRole{}},
	{"rbac.authorization.k8s.io", "v1", rbac.ClusterRoleBinding{}},
	{"rbac.authorization.k8s.io", "v1", rbac.Role{}},
	{"rbac.authorization.k8s.io", "v1", rbac.RoleBinding{}},
	{"resource.k8s.io", "v1", resource.DeviceClass{}},
	{"resource.k8s.io", "v1", resource.ResourceClaim{}},
	{"resource.k8s.io", "v1", resource.ResourceClaimTemplate{}},
	{"resource.k8s.io", "v1", resource.ResourceSlice{}},
	{"scheduling.k8s.io", "v1", scheduling.PriorityClass{}},
	{"storage.k8s.io", "v1", storage.CSIDriver{}},
	{"storage.k8s.io", "v1", storage.CSINode{}},
	{"storage.k8s.io", "v1", storage.CSIStorageCapacity{}},
	{"storage.k8s.io", "v1", storage.StorageClass{}},
	{"storage.k8s.io", "v1", storage.VolumeAttachment{}},
	{"storage.k8s.io", "v1", storage.VolumeAttributesClass{}},
	{"storage.k8s.io", "v1beta1", storagev1beta1.VolumeAttributesClass{}},
	{"meta.k8s.io", "v1", meta.CreateOptions{}},
	{"meta.k8s.io", "v1", meta.DeleteOptions{}},
	{"meta.k8s.io", "v1", meta.LabelSelector{}},
	{"meta.k8s.io", "v1", meta.ObjectMeta{}},
	{"meta.k8s.io", "v1", meta.PartialObjectMetadata{}},
	{"meta.k8s.io", "v1", meta.PatchOptions{}},
	{"meta.k8s.io", "v1", meta.Status{}},
	{"meta.k8s.io", "v1", meta.UpdateOptions{}},
}
