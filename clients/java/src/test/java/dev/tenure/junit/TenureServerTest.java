package dev.tenure.junit;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertFalse;
import static org.junit.jupiter.api.Assertions.assertNotEquals;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;

import io.fabric8.kubernetes.api.model.coordination.v1.LeaseBuilder;
import io.fabric8.kubernetes.client.Config;
import io.fabric8.kubernetes.client.KubernetesClient;
import io.fabric8.kubernetes.client.KubernetesClientBuilder;
import java.nio.file.Files;
import java.nio.file.Path;
import org.junit.jupiter.api.Nested;
import org.junit.jupiter.api.RepeatedTest;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.extension.RegisterExtension;

class TenureServerTest {
  @RegisterExtension static final TenureServer SHARED = new TenureServer("--disable=all");

  private static Path before;

  static KubernetesClient client(TenureServer server) {
    Config config = Config.fromKubeconfig(server.kubeconfig().toFile());
    return new KubernetesClientBuilder().withConfig(config).build();
  }

  @Test
  void sharedServerStoresALease() {
    try (KubernetesClient client = client(SHARED)) {
      var lease = new LeaseBuilder()
          .withNewMetadata().withName("web").endMetadata()
          .withNewSpec().withHolderIdentity("a").endSpec()
          .build();
      var leases = client.leases().inNamespace("default");
      leases.resource(lease).create();
      assertEquals("a", leases.withName("web").get().getSpec().getHolderIdentity());
    }
  }

  @Nested
  class OfEachTest {
    @RegisterExtension final TenureServer own = new TenureServer("--disable=all");

    @RepeatedTest(2)
    void serverEndsWithItsTest() {
      assertNotEquals(SHARED.kubeconfig(), own.kubeconfig());
      assertTrue(Files.exists(SHARED.kubeconfig()), "the class still uses it");
      assertTrue(before == null || !Files.exists(before), "the server of the first repetition has ended");
      before = own.kubeconfig();
    }
  }

  @Test
  void closedServerHasRemovedItsFiles() {
    Path kubeconfig;
    try (TenureServer server = new TenureServer("--disable=all").start()) {
      kubeconfig = server.kubeconfig();
      assertTrue(Files.exists(kubeconfig));
    }
    assertFalse(Files.exists(kubeconfig));
  }

  @Test
  void invalidFlagIsReported() {
    try (TenureServer server = new TenureServer("--no-such-flag")) {
      var error = assertThrows(IllegalStateException.class, server::start);
      assertTrue(error.getMessage().contains("it ended"), error.getMessage());
    }
  }
}
