/** A Kubernetes API server with its data in memory, on a free port of loopback. It ends with this process. */
export interface Server {
  /** The kubeconfig file of its administrator. */
  readonly kubeconfig: string;
  /** Ends the server, and waits until it has removed its files. */
  stop(): Promise<void>;
}

export interface Options {
  /** Additional flags of `tenure server`, for example `--disable=all`. */
  args?: readonly string[];
  /** Time until a server that is not ready counts as failed, in milliseconds [default: 60000]. */
  timeout?: number;
}

/** Starts a server, and waits until it is ready. Its messages go to standard error. */
export function startServer(options?: Options): Promise<Server>;

/** Returns the path of the command `tenure`: `$TENURE_BINARY`, or the file of this package. */
export function binary(): string;
