# The stand-in for Python's image with the machine's own folder of wheels, which pip inside would not see.
FROM cwm-stand-in/python
COPY . /opt/wheels
ENV PIP_FIND_LINKS=/opt/wheels
