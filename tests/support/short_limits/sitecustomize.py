"""Python imports this module when it starts: the command and its processes wait for a tracking server as long as a test says."""

import os

if "TEST_GIVE_UP_S" in os.environ:
    from sweeprof.tracking import connection

    connection.GIVE_UP_S = float(os.environ["TEST_GIVE_UP_S"])

if "TEST_REQUEST_S" in os.environ:
    from sweeprof.tracking import connection

    connection.ENVIRONMENT["MLFLOW_HTTP_REQUEST_TIMEOUT"] = os.environ["TEST_REQUEST_S"]
    connection.REQUEST_S = connection.ANSWER_S = float(os.environ["TEST_REQUEST_S"])
