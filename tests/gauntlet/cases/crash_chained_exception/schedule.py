class ConfigError(Exception):
    pass


class Schedule:
    def __init__(self, options):
        try:
            self.warmup = int(options["warmup"])
        except ValueError as err:
            raise ConfigError(f"warmup={options['warmup']!r}") from err  # fault
