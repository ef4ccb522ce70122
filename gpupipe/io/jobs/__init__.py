"""Dataset writers: parts, their destination, and the manifest that lists them."""
