"""What a run of `penstock train` is made of: data, network, weights, handlers, folder, words."""
