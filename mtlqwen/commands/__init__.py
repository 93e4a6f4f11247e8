"""The subcommands of `mtlqwen`, one module each; what they need is imported when they run."""
