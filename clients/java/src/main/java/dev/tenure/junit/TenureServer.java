package dev.tenure.junit;

import java.io.File;
import java.io.IOException;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.HashSet;
import java.util.List;
import java.util.Set;
import java.util.concurrent.ExecutionException;
import java.util.concurrent.FutureTask;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.TimeoutException;
import org.junit.jupiter.api.extension.AfterAllCallback;
import org.junit.jupiter.api.extension.AfterEachCallback;
import org.junit.jupiter.api.extension.BeforeAllCallback;
import org.junit.jupiter.api.extension.BeforeEachCallback;
import org.junit.jupiter.api.extension.ExtensionContext;
import org.junit.jupiter.api.extension.ParameterContext;
import org.junit.jupiter.api.extension.ParameterResolver;

/**
 * A Kubernetes API server for tests: {@code tenure server --ephemeral}. It keeps its data in memory, listens on a free
 * port of loopback, and ends with this process, even if the process is killed. Its messages go to standard error.
 *
 * <p>All tests of a class share a server that is registered with {@code @ExtendWith(TenureServer.class)}, or as a
 * static field with {@code @RegisterExtension}. If the field is not static, each test has its own server. Tests and
 * lifecycle methods can take the server as a parameter.
 */
public final class TenureServer
    implements BeforeAllCallback, BeforeEachCallback, AfterEachCallback, AfterAllCallback, ParameterResolver, AutoCloseable {
  /** Time until a server that prints nothing counts as failed, and until one that ignores SIGTERM is killed. */
  private static final int START_SECONDS = 60, STOP_SECONDS = 10;

  private final List<String> command = new ArrayList<>();
  /** The running tests and classes that use the server. It ends after the last of them. */
  private final Set<String> users = new HashSet<>();
  private Process process;
  private Path kubeconfig;

  /** A server with the default flags. */
  public TenureServer() {
    this(new String[0]);
  }

  /** A server with additional flags of {@code tenure server}, for example {@code --disable=all}. */
  public TenureServer(String... flags) {
    String binary = System.getenv("TENURE_BINARY");
    command.add(binary == null || binary.isEmpty() ? "tenure" : binary);
    command.addAll(List.of("server", "--ephemeral"));
    command.addAll(List.of(flags));
  }

  /**
   * Starts the server unless it runs, and waits until it is ready. JUnit calls this for a registered server.
   *
   * @throws IllegalStateException if there is no command {@code tenure} on the PATH, nor in the file of the variable
   *     TENURE_BINARY, or if the server does not become ready
   */
  public synchronized TenureServer start() {
    if (process != null) {
      return this;
    }
    try {
      ProcessBuilder server = new ProcessBuilder(command).redirectError(ProcessBuilder.Redirect.INHERIT);
      process = server.redirectInput(new File("/dev/null")).start();
      // A blocking read cannot be interrupted. The thread ends with the server.
      FutureTask<String> line = new FutureTask<>(() -> process.inputReader().readLine());
      Thread reader = new Thread(line, "tenure server");
      reader.setDaemon(true);
      reader.start();
      String first = line.get(START_SECONDS, TimeUnit.SECONDS);
      if (first == null) {
        throw new IOException("it ended");
      }
      kubeconfig = Path.of(first);
      return this;
    } catch (IOException | ExecutionException | InterruptedException | TimeoutException error) {
      close();
      if (error instanceof InterruptedException) {
        Thread.currentThread().interrupt();
      }
      String reason = error instanceof TimeoutException ? "not ready after " + START_SECONDS + " s" : error.getMessage();
      throw new IllegalStateException(
          "cannot start " + String.join(" ", command) + ": " + reason + "; its messages are on standard error", error);
    }
  }

  /** Returns the kubeconfig file of the administrator. */
  public synchronized Path kubeconfig() {
    if (kubeconfig == null) {
      throw new IllegalStateException("the server does not run");
    }
    return kubeconfig;
  }

  /** Ends the server, and waits until it has removed its files. JUnit calls this for a registered server. */
  @Override
  public synchronized void close() {
    if (process == null) {
      return;
    }
    process.destroy();
    try {
      if (!process.waitFor(STOP_SECONDS, TimeUnit.SECONDS)) {
        process.destroyForcibly();
      }
    } catch (InterruptedException error) {
      process.destroyForcibly();
      Thread.currentThread().interrupt();
    }
    process = null;
    kubeconfig = null;
  }

  @Override
  public synchronized void beforeAll(ExtensionContext context) {
    users.add(context.getUniqueId());
    start();
  }

  @Override
  public void beforeEach(ExtensionContext context) {
    beforeAll(context);
  }

  @Override
  public void afterEach(ExtensionContext context) {
    afterAll(context);
  }

  @Override
  public synchronized void afterAll(ExtensionContext context) {
    users.remove(context.getUniqueId());
    if (users.isEmpty()) {
      close();
    }
  }

  @Override
  public boolean supportsParameter(ParameterContext parameter, ExtensionContext context) {
    return parameter.getParameter().getType() == TenureServer.class;
  }

  @Override
  public TenureServer resolveParameter(ParameterContext parameter, ExtensionContext context) {
    return this;
  }
}
