"""The published contract: tools, schemas, resources and how results are rendered."""
