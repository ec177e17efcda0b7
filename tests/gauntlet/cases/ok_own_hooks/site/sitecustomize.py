import os

os.environ["OUR_SITE"] = "loaded"
