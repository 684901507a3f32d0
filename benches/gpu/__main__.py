"""The command."""

from benches.gpu.run import main

if __name__ == "__main__":
    main()
