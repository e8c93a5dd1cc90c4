"""What all tests share."""

from hypothesis import settings

# A busy machine makes an example slow without making it wrong, so only the test's own timeout counts.
settings.register_profile("elastrain", deadline=None)
settings.load_profile("elastrain")
