class ActivationStats:
    def __init__(self, net, known):
        self.enabled = False
        self.means = {f"layer{i}": [] for i in range(known)}
        for i, layer in enumerate(net):
            layer.register_forward_hook(self.hook(f"layer{i}"))

    def hook(self, name):
        def record(module, args, output):
            if self.enabled:
                self.means[name].append(output.mean().item())  # fault

        return record
