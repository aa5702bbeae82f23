import os
from urllib.parse import urlsplit

database = urlsplit(os.environ["DATABASE_URL"])

DATABASES = {
    "default": {
        "ENGINE": "django.db.backends.postgresql",
        "HOST": database.hostname,
        "PORT": database.port or "",
        "USER": database.username,
        "PASSWORD": database.password or "",
        "NAME": database.path.removeprefix("/"),
    }
}
DEFAULT_AUTO_FIELD = "django.db.models.BigAutoField"
INSTALLED_APPS = ["shop"]
USE_TZ = True
